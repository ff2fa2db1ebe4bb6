# Two tasks on one node that both want all of its CPU: "logreg" learns what it can
# learn within seconds and then goes on without end, "vae" learns for minutes.
#
#   nomad job run jobspecs/compete.hcl
#
# What to look at, after a minute or so: "logreg" goes NL -> WL -> CL, an event says
# that it converged, and "vae" has more CPU than "logreg" in the UI's charts. Both have
# the same `cpu`; plain Nomad would give each the half.
#
#   nomad alloc fs -job compete alloc/data/ebbtide/logreg.json    # category, limit, why
#   nomad job stop compete                                        # "logreg" has no end
job "compete" {
  type = "batch"

  # One group, so that both are on one node.
  group "train" {
    task "logreg" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "logreg", "-linger", "-style", "keras"]
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
        args    = ["-model", "vae", "-steps", "20000", "-style", "lightning"]
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
