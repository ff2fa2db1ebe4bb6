# Two training jobs with targets (TRADL). "vae" is usable at a loss of 115 and complete at
# 108; "mlp" is complete at 0.74 and has no acceptable target.
#
#   nomad job run jobspecs/targets.hcl
#
# What to look at: at 115 an event says that the acceptable target is reached, the marker
# alloc/data/ebbtide/vae.acceptable appears, and the trainer, on SIGUSR1, writes its best
# parameters to alloc/data/vae.best. From then on "vae" yields CPU to "mlp" while that still
# learns. At its objective each task ends: the allocation is complete, although the trainer
# exits with status 143.
#
#   nomad alloc status -job targets              # events, and complete at the end
#   nomad alloc fs -job targets alloc/data/ebbtide/vae.json
job "targets" {
  type = "batch"

  group "train" {
    task "vae" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "vae", "-steps", "0", "-every", "20", "-save-best", "${NOMAD_ALLOC_DIR}/data/vae.best", "-term-exit", "143"]
        progress {
          metric = "loss"
        }
        target {
          signal = "SIGUSR1"
          grace  = "10s"
        }
      }
      meta {
        ebbtide_acceptable = "115"
        ebbtide_objective  = "108"
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }

    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-steps", "0", "-term-exit", "143"]
      }
      meta {
        ebbtide_metric = "loss"
        # Three reports in a row, because single ones are noisy.
        ebbtide_objective   = "0.74"
        ebbtide_target_hold = "3"
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
