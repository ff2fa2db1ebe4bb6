# Two tasks on one node that both want all of its CPU. "mlp" has few data: its loss on
# the held-out part is at its best within seconds and only rises then, for a million steps.
# "vae" learns for minutes, and ends much sooner.
#
#   nomad job run jobspecs/compete.hcl
#
# What to look at, after a minute: "mlp" goes NL -> WL -> CL, an event says that it
# converged, and "vae" has more CPU than "mlp" in the UI's charts. Both have the same
# `cpu`; plain Nomad would give each the half. "mlp" prints no total: without the meta it
# would have its half here, too.
#
#   nomad alloc fs -job compete alloc/data/ebbtide/mlp.json    # category, limit, why
#   nomad job stop compete                                     # "mlp" has no end
job "compete" {
  type = "batch"

  # One group, so that both are on one node.
  group "train" {
    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-size", "2048", "-every", "25", "-linger", "-style", "plain"]
      }
      meta {
        ebbtide_total_steps = "1000000"
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }

    task "vae" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "vae", "-steps", "60000", "-style", "plain"]
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
