# Two tasks on one node that both want all of its CPU. "mlp" has little data: its loss on
# the held-out part is best within seconds and only rises from then on, for a million
# steps. "vae" learns for minutes and ends much sooner.
#
#   nomad job run jobspecs/compete.hcl
#
# What to look at, after a minute: "mlp" goes from NL to WL to CL, an event says that it
# has converged, and "vae" has more CPU in the UI's charts. Both have the same `cpu`, so
# plain Nomad would give each half. "mlp" prints no total: without its meta Ebbtide would
# not know how long it is and would give it half, too.
#
#   nomad alloc fs -job compete alloc/data/ebbtide/mlp.json    # category, limit, why
#   nomad job stop compete                                     # "mlp" does not end
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
