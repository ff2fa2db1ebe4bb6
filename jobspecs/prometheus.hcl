# A trainer with a Prometheus metrics endpoint.
#
#   nomad job run jobspecs/prometheus.hcl
#
# What to look at: "metric" and "value" in the status are those of the gauge train_loss.
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
