# A training job that waits until the shim has found the node on which it can learn
# fastest, and starts there at once. No node fulfils its constraint, so Nomad keeps it
# waiting; the shim takes the constraint off. The shim must run, with placement { enabled = true }.
#
#   nomad job run jobspecs/hold.hcl
#   ebbtide moves
#
# What to watch: without a shim `nomad job status hold` says that the constraint has
# excluded all nodes. With one there is a single allocation, and ebbtide moves says why it
# is where it is. If the shim finds no node within 30 s (placement.hold_timeout), Nomad
# places the job as any other.
#
# To let all waiting jobs run without a shim, say on each node
#
#   nomad node meta apply -node-id NODE ebbtide_hold=released
job "hold" {
  type = "batch"

  meta {
    ebbtide_hold = "true"
  }

  constraint {
    attribute = "${meta.ebbtide_hold}"
    value     = "released"
  }

  group "train" {
    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-steps", "0", "-every", "20"]
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
