# A trainer that writes TensorBoard's event files.
#
#   nomad job run jobspecs/tensorboard.hcl
#
# What to watch: the status follows the scalar, and `tensorboard --logdir` shows the same curve
# from alloc/data/runs.
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
