# A trainer with a metrics endpoint, read as Prometheus would read it.
#
#   nomad job run jobspecs/prometheus.hcl
#
# What to watch: "value" and "metric" in the status are the gauge train_loss.
#
#   nomad alloc fs -job prometheus alloc/data/ebbtide/mlp.json
job "prometheus" {
  type = "batch"

  group "train" {
    network {
      port "metrics" {}
    }

    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-style", "none", "-metrics", "${NOMAD_ADDR_metrics}"]
        progress {
          prometheus = "http://${NOMAD_ADDR_metrics}/metrics"
          metric     = "train_loss"
          step       = "train_step"
          total      = "train_total_steps"
        }
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
