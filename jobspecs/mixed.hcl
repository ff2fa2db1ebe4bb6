# All kinds of tasks on one node, under policy "auto": an inference service with a target, a
# training job that converges after a while, one that learns for long, and a task that
# reports nothing.
#
#   nomad job run jobspecs/mixed.hcl
#
# What to look at: the service gets what its target needs; the rest goes to "vae", because
# "mlp" no longer gains; "quiet" has its fair share. "rule" and "why" in each status
# say so, and "node" has the counts.
#
#   nomad alloc fs -job mixed alloc/data/ebbtide/predict.json
#   nomad job stop mixed                         # it does not end
job "mixed" {
  type = "batch"

  group "mixed" {
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
        ebbtide_qoe_target = "0.3"
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

    task "vae" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "vae", "-steps", "0"]
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }

    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-size", "2048", "-every", "25", "-linger"]
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }

    task "quiet" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "logreg", "-threads", "1", "-steps", "0", "-style", "silent"]
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
