# The shim as a Nomad job: it moves training jobs between nodes (docs/shim.md). Two
# instances run; one leads, the other takes over if that fails.
#
#   nomad namespace apply ebbtide
#   nomad acl policy apply -namespace ebbtide -job ebbtide-shim ebbtide-shim jobspecs/acl/shim.hcl
#   nomad job run -namespace ebbtide jobspecs/shim.hcl
#
# The namespace is its own, since every user who may submit this job gets the policy's rights.
# The clients need Ebbtide's package, and Nomad's exec driver, which builds of Nomad without
# cgo lack. The second command is needed only with ACLs. No token or certificate is needed:
# each task uses its own agent's socket, which Nomad puts next to the task's secrets, and its
# workload identity, to which the policy is bound.
#
# What to look at: one instance logs that it leads and follows the cluster, the other that it
# stands by.
#
#   nomad alloc logs -namespace ebbtide -stderr -job ebbtide-shim
#   ebbtide moves

variable "ebbtide" {
  type        = string
  default     = "/usr/bin/ebbtide"
  description = "Path of the command in the exec driver's chroot, which has /usr by default."
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

    # Runs forever; rescheduled to another node if it fails here.
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

    # One at a time, so that one can always lead.
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

      # docs/shim.md has every option. Changes apply without a restart.
      template {
        destination   = "local/shim.hcl"
        change_mode   = "signal"
        change_signal = "SIGHUP"
        data          = <<-EOH
          leader {
            namespace = "{{ env "NOMAD_NAMESPACE" }}"
          }
          web {
            address = "{{ env "NOMAD_ADDR_web" }}"
          }
        EOH
      }

      # Time to undo a move that is under way; capped by the client's
      # max_kill_timeout.
      kill_signal  = "SIGTERM"
      kill_timeout = "3m"

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }
}
