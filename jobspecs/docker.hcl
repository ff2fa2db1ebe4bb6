# A training job in a container: a docker job with another driver name.
#
#   make build
#   tar -C bin --transform 's,^,bin/,' -c trainer | docker import - ebbtide-trainer:1
#   nomad job run jobspecs/docker.hcl
#
# What to look at: Docker knows the limit that Ebbtide sets (CpuShares), and the container
# has the label io.ebbtide.node_id. Start a second training job and compare:
#
#   docker ps --filter label=io.ebbtide.node_id -q | xargs docker inspect -f '{{.Name}} {{.HostConfig.CpuShares}}'
job "docker" {
  type = "batch"

  group "train" {
    task "mlp" {
      driver = "ebbtide"

      # The docker driver's options.
      config {
        image   = "ebbtide-trainer:1"
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-style", "plain"]
      }

      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
