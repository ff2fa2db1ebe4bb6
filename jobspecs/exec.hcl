# One training job with the exec engine (no Docker).
#
#   nomad job run jobspecs/exec.hcl
#
# What to look at: in the UI, Jobs > exec > the allocation > task "vae" > Files >
# alloc > data > ebbtide > vae.png, or
#
#   nomad alloc fs -job exec alloc/data/ebbtide/vae.json
#
# A task that is alone on its node is never limited: limit.fraction is 1, and "why" says so.
#
# /bin/trainer is what `make build` puts into bin/trainer. The agent that KEEP=1 make demo
# leaves running has it; for an agent of your own, add it to the chroot:
#
#   client { chroot_env { "/opt/ebbtide/trainer" = "/bin/trainer" } }
job "exec" {
  type = "batch"

  group "train" {
    task "vae" {
      driver = "ebbtide"

      # The exec driver's options. The output of most trainers is understood
      # without any of Ebbtide's.
      config {
        command = "/bin/trainer"
        args    = ["-model", "vae", "-style", "plain"]
      }

      resources {
        cpu    = 200 # MHz: the weight, not an upper bound
        memory = 128
      }
    }
  }
}
