# The same with a CSV file, in the directory that the tasks of the group share.
#
#   nomad job run jobspecs/csv.hcl
#
# What to watch: as with jobspecs/jsonl.hcl. `cat` the file to see the header that is read.
#
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
