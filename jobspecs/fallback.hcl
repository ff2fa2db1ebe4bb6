# No job waits for a shim forever: if none has led for an hour, the jobs that wait in its queue are
# left to Nomad's scheduler (docs/queue.md). Checked every ten minutes.
#
#   nomad acl policy apply -namespace ebbtide -job ebbtide-fallback ebbtide-fallback jobspecs/acl/shim.hcl
#   nomad job run -namespace ebbtide jobspecs/fallback.hcl
#
# The namespace and the rights are those of shim.hcl; the first command is needed only with ACLs.
#
# What to look at:
#
#   nomad job periodic force -namespace ebbtide ebbtide-fallback
#   nomad alloc logs -namespace ebbtide -job ebbtide-fallback/periodic-…

variable "ebbtide" {
  type        = string
  default     = "/usr/bin/ebbtide"
  description = "Path of the command in the exec driver's chroot, which has /usr by default."
}

job "ebbtide-fallback" {
  type = "batch"

  periodic {
    crons            = ["*/10 * * * *"]
    prohibit_overlap = true
  }

  group "fallback" {
    task "fallback" {
      driver = "exec"

      config {
        command = var.ebbtide
        args    = ["queue", "drain", "-fallback", "1h"]
      }

      # NOMAD_TOKEN
      identity {
        env = true
      }

      env {
        NOMAD_ADDR = "unix://${NOMAD_SECRETS_DIR}/api.sock"
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
