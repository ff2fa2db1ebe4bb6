# A training job that can be moved to another node. On SIGUSR1 it writes
# alloc/data/vae.ckpt, and when it starts it resumes from that file. The ephemeral disk
# moves with the allocation.
#
#   nomad job run jobspecs/checkpoint.hcl
#   nomad alloc signal -s EBBTIDE_CHECKPOINT $(nomad job allocs -t '{{(index . 0).ID}}' checkpoint) vae
#
# What to look at: an event names the checkpoint, its size and its step, and the task is
# frozen; "move" in the status says the same. After a minute, the lease, or after
#
#   nomad alloc signal -s EBBTIDE_RELEASE $(nomad job allocs -t '{{(index . 0).ID}}' checkpoint) vae
#
# it runs on. Stopping the job meanwhile kills the task without thawing it.
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
