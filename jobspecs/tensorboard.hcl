# A trainer that writes TensorBoard event files.
#
#   nomad job run jobspecs/tensorboard.hcl
#
# What to look at: the status follows the scalar; `tensorboard --logdir` on alloc/data/runs
# shows the same curve.
#
#   nomad alloc fs -job tensorboard alloc/data/ebbtide/mlp.json
job "tensorboard" {
  type = "batch"

  group "train" {
    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-style", "none", "-progress-file", "${NOMAD_ALLOC_DIR}/data/runs", "-progress-format", "tensorboard"]
        progress {
          tensorboard = "${NOMAD_ALLOC_DIR}/data/runs"
        }
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
