# A job that is never limited: its progress is read and shown, its CPU is left to
# Nomad, and it does not count when the others divide theirs.
#
#   nomad job run jobspecs/opt-out.hcl
#
# What to look at: "why" in alloc/data/ebbtide/mlp.json says that the job asked not to
# be limited; "shares" stay at 200 whatever runs beside it. Meta can stand in the
# job, the group or the task.
job "opt-out" {
  type = "batch"

  meta {
    ebbtide_limit = "off"
  }

  group "train" {
    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-style", "plain"]
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
