# A trainer that writes its reports to a CSV file in the allocation's shared directory.
#
#   nomad job run jobspecs/csv.hcl
#
# What to look at: "metric", "value" and "step" in the status follow the file.
#
#   nomad alloc fs -job csv alloc/data/metrics.csv
#   nomad alloc fs -job csv alloc/data/ebbtide/mlp.json
job "csv" {
  type = "batch"

  group "train" {
    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-style", "none", "-progress-file", "${NOMAD_ALLOC_DIR}/data/metrics.csv"]
        progress {
          file = "${NOMAD_ALLOC_DIR}/data/metrics.csv"
        }
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
