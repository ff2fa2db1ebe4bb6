# A metric of your choice, which is to rise.
#
#   nomad job run jobspecs/metric.hcl
#
# What to look at: "metric" is accuracy and "goal" max in
# alloc/data/ebbtide/gru.json. Without the metric's name Ebbtide would take the loss,
# which is printed as well; without a goal it would infer max from the name. Say goal
# where the name says nothing.
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
