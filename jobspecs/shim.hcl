# The shim as a Nomad job: it moves training jobs between nodes (docs/shim.md). Two run,
# one of them acts, and the other takes over when it is gone.
#
#   nomad acl policy apply -namespace default -job ebbtide-shim ebbtide-shim jobspecs/acl/shim.hcl
#   nomad job run jobspecs/shim.hcl
#
# The clients have Ebbtide's package. The first command only where ACLs are on. There is no token and no certificate to hand
# out: each task talks to its own agent, through the socket that Nomad puts beside its
# secrets, as the identity that Nomad has given it, and the policy is bound to that.
#
# What to watch: the log of one says that it leads and follows the cluster, that of the
# other that it stands by.
#
#   nomad alloc logs -stderr -job ebbtide-shim
#   ebbtide moves

variable "ebbtide" {
  type        = string
  default     = "/usr/bin/ebbtide"
  description = "The command, as tasks of the exec driver see it: the agent's chroot_env has /usr unless it says otherwise."
}

job "ebbtide-shim" {
  group "shim" {
    count = 2

    spread {
      attribute = "${node.unique.id}"
    }

    network {
      port "web" {}
    }

    service {
      name     = "ebbtide-shim"
      provider = "nomad"
      port     = "web"

      check {
        type     = "http"
        path     = "/health"
        interval = "10s"
        timeout  = "2s"
      }
    }

    # It is to run for ever. One that cannot is tried on other nodes as well.
    restart {
      attempts = 3
      interval = "5m"
      delay    = "10s"
      mode     = "fail"
    }
    reschedule {
      delay          = "30s"
      delay_function = "constant"
      unlimited      = true
    }

    # One after the other, so that there is always one to lead.
    update {
      max_parallel     = 1
      health_check     = "checks"
      min_healthy_time = "10s"
      healthy_deadline = "2m"
      auto_revert      = true
    }

    task "shim" {
      driver = "exec"

      config {
        command = var.ebbtide
        args    = ["shim", "-config", "${NOMAD_TASK_DIR}/shim.hcl"]
      }

      # NOMAD_TOKEN
      identity {
        env = true
      }

      env {
        NOMAD_ADDR = "unix://${NOMAD_SECRETS_DIR}/api.sock"
      }

      # docs/shim.md has every option. A change is taken over without a restart.
      template {
        destination   = "local/shim.hcl"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOH
          web {
            address = "{{ env "NOMAD_ADDR_web" }}"
          }
        EOH
      }

      # A move that is under way takes a while to be undone. The client's
      # max_kill_timeout caps this.
      kill_signal  = "SIGTERM"
      kill_timeout = "3m"

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
