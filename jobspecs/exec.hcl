# One training job, exec engine (no Docker).
#
#   nomad job run jobspecs/exec.hcl
#
# What to look at: in the UI, Jobs > exec > the allocation > task "vae" > Files >
# alloc > data > ebbtide > vae.png, or
#
#   nomad alloc fs -job exec alloc/data/ebbtide/vae.json
#
# A task that is alone is never limited: limit.fraction is 1, whatever its growth.
# "why" says how that came about.
#
# /bin/trainer is what `make build` puts into bin/trainer. KEEP=1 make demo leaves
# an agent that has it; on an agent of your own, put it into the chroot:
#
#   client { chroot_env { "/opt/ebbtide/trainer" = "/bin/trainer" } }
job "exec" {
  type = "batch"

  group "train" {
    task "vae" {
      driver = "ebbtide"

      # These are the exec driver's options. The output of most trainers is
      # understood without any of Ebbtide's.
      config {
        command = "/bin/trainer"
        args    = ["-model", "vae", "-style", "plain"]
      }

      resources {
        cpu    = 200 # MHz: the base weight, as ever; no upper bound
        memory = 128
      }
    }
  }
}
