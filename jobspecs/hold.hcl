# A training job that waits until the shim has chosen the node on which it can learn
# fastest. No node fulfils its constraint, so Nomad leaves it pending until the shim takes
# the constraint off. Needs a shim with placement { enabled = true }.
#
#   nomad job run jobspecs/hold.hcl
#   ebbtide moves
#
# What to look at: without a shim, `nomad job status hold` says that the constraint excludes
# all nodes. With one there is a single allocation, and `ebbtide moves` says why it is there.
# If the shim finds no node within 30 s (placement.hold_timeout), Nomad places the job as
# any other.
#
# To release all held jobs without a shim, run for each node
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
