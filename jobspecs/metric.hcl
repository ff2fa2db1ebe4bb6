# A metric of your choice that rises.
#
#   nomad job run jobspecs/metric.hcl
#
# What to look at: in alloc/data/ebbtide/gru.json "metric" is accuracy and "goal" is max.
# Without `metric` Ebbtide would read the loss, which is printed as well. `goal` is only
# needed for names that do not imply a direction; accuracy does.
job "metric" {
  type = "batch"

  group "train" {
    task "gru" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "gru", "-metric", "both", "-style", "plain"]
        progress {
          metric = "accuracy"
          goal   = "max"
        }
      }
    }
  }
}
