# A task with dedicated CPUs. `cores` pins them: they are not in the pool, and the task is
# never limited. Needs a node with two cores or more.
#
#   nomad job run jobspecs/cores.hcl
#
# What to look at: node.pool_cores in alloc/data/ebbtide/mlp.json, and in the files of other
# tasks on the node, is smaller by one, and "why" says that the task has its own cores.
job "cores" {
  type = "batch"

  group "train" {
    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-threads", "1", "-style", "plain"]
      }
      resources {
        cores  = 1
        memory = 128
      }
    }
  }
}
