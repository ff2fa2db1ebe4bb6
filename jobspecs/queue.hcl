# A job that waits in the queue: the shim gives it its place when it is due. No node
# fulfils its constraint, so Nomad leaves it pending until the shim takes the constraint
# off. Needs a shim.
#
#   nomad job run jobspecs/queue.hcl
#   ebbtide queue
#
# What to look at: if there is room, it starts at once. Run it under other names until there
# is none: those with the shorter ebbtide_duration start first, and `ebbtide queue` says what
# each waits for.
#
# To release all held jobs without a shim, run for each node
#
#   nomad node meta apply -node-id NODE ebbtide_hold=released
job "queue" {
  type = "batch"

  meta {
    ebbtide_queue    = "true"
    ebbtide_duration = "10m"    # a guess; its steps count once it runs
    ebbtide_owner    = "vision" # default: the namespace
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
        args    = ["-model", "mlp", "-steps", "3000", "-every", "20"]
      }
      resources {
        cpu    = 200
        memory = 128
      }
    }
  }
}
