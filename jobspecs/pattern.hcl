# A regular expression for output that no preset reads. The named group "value" is
# required, "step" and "total" are optional. The syntax is RE2 (Go).
#
#   nomad job run jobspecs/pattern.hcl
#
# What to look at: step and total in alloc/data/ebbtide/mlp.json. Try a pattern on a log
# first:
#
#   bin/ebbtide progress --pattern 'step=(?P<step>\d+) total_steps=(?P<total>\d+) .*loss=(?P<value>\S+)' < training.log
job "pattern" {
  type = "batch"

  group "train" {
    task "mlp" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-style", "plain"]
        progress {
          # In HCL a backslash is written twice.
          pattern = "step=(?P<step>\\d+) total_steps=(?P<total>\\d+) .*loss=(?P<value>\\S+)"
          goal    = "min"
        }
      }
    }
  }
}
