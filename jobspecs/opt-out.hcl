# A job that is never limited: its progress is read and shown, Nomad alone decides its CPU,
# and it is not counted when the other tasks' CPU is divided.
#
#   nomad job run jobspecs/opt-out.hcl
#
# What to look at: "why" in alloc/data/ebbtide/mlp.json says that the job asked for it, and
# "shares" stays at 200 whatever else runs on the node. Meta may be in the job, the group
# or the task.
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
