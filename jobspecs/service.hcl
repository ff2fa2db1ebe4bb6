# An inference service with a target response time (DQoES): 150 ms for a batch of 100, the
# median of its own Prometheus histogram.
#
#   nomad job run jobspecs/service.hcl
#
# What to look at: "class" in the status is G (better than the target), S (satisfied) or B
# (worse), and "target.response_s" is the measured time. Alone, the service is never
# limited. Run jobspecs/compete.hcl next to it: it keeps its response time.
#
#   nomad alloc fs -job service alloc/data/ebbtide/predict.json
#   nomad alloc logs -job service load           # the client's view
job "service" {
  group "service" {
    network {
      port "http" {}
    }

    task "predict" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args = [
          "serve", "-model", "mlp", "-train-steps", "200", "-threads", "1", "-work", "20",
          "-listen", "${NOMAD_ADDR_http}",
        ]
        progress {
          prometheus = "http://${NOMAD_ADDR_http}/metrics"
          metric     = "response_seconds"
          quantile   = 0.5
        }
      }
      meta {
        ebbtide_qoe_target = "150ms"
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }

    # The service's client: neither a service nor a training job, so it is not limited.
    task "load" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["load", "-target", "http://${NOMAD_ADDR_http}"]
      }
      meta {
        ebbtide_limit = "off"
      }
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
