# A trainer that prints nothing and writes its reports to a file, one JSON object per line.
#
#   nomad job run jobspecs/jsonl.hcl
#
# What to look at: "metric", "value" and "step" in the status follow the file.
#
#   nomad alloc fs -job jsonl alloc/data/ebbtide/mlp.json
job "jsonl" {
  type = "batch"

  group "train" {
    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-style", "none", "-progress-file", "${NOMAD_TASK_DIR}/metrics.jsonl"]
        progress {
          file   = "${NOMAD_TASK_DIR}/metrics.jsonl"
          metric = "loss"
        }
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
