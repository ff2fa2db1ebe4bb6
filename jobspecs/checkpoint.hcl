# A training job that says how it saves its state, so that it can be moved to another
# node: on SIGUSR1 it writes alloc/data/vae.ckpt, and it begins with it where it finds one.
# The ephemeral disk goes with the allocation.
#
#   nomad job run jobspecs/checkpoint.hcl
#   nomad alloc signal -s EBBTIDE_CHECKPOINT $(nomad job allocs -t '{{(index . 0).ID}}' checkpoint) vae
#
# What to watch: an event tells the checkpoint, its size and the step, and the task stands
# still; "move" in the status has the same. After a minute, or with
#
#   nomad alloc signal -s EBBTIDE_RELEASE $(nomad job allocs -t '{{(index . 0).ID}}' checkpoint) vae
#
# it runs on as if nothing had been. Stop the job instead, and it ends where it stands.
job "checkpoint" {
  type = "batch"

  group "train" {
    ephemeral_disk {
      sticky  = true
      migrate = true
    }

    task "vae" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "vae", "-steps", "0", "-every", "20", "-checkpoint", "${NOMAD_ALLOC_DIR}/data/vae.ckpt", "-resume"]
        checkpoint {
          path   = "${NOMAD_ALLOC_DIR}/data/vae.ckpt"
          signal = "SIGUSR1"
          lease  = "1m"
        }
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
