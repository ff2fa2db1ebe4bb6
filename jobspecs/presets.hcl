# One task for each kind of output that Ebbtide reads by itself. The default, preset =
# "auto", tries all of them.
#
#   nomad job run jobspecs/presets.hcl
#
# What to look at: metric, value, step and total in alloc/data/ebbtide/<task>.json. To try a
# preset without Nomad:
#
#   bin/trainer -model mlp -style keras 2>&1 | bin/ebbtide progress --preset keras
job "presets" {
  type = "batch"

  # {'loss': 0.5, 'epoch': 1.0}, old and new quoting; the step comes from the bar
  # between the lines.
  group "huggingface" {
    task "huggingface" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-threads", "1", "-style", "huggingface"]
        progress {
          preset = "huggingface"
        }
      }
    }
  }

  # 12/469 ━━━━ 1s 2ms/step - loss: 0.5
  group "keras" {
    task "keras" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-threads", "1", "-style", "keras"]
        progress {
          preset = "keras"
        }
      }
    }
  }

  # Epoch 3:  10%|█ | 10/100 [00:01<00:09, train_loss=0.5]
  group "lightning" {
    task "lightning" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-threads", "1", "-style", "lightning"]
        progress {
          preset = "lightning" # "tqdm" for other programs' bars
        }
      }
    }
  }

  # step=10 total_steps=100 loss=0.5
  group "plain" {
    task "plain" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-threads", "1", "-style", "plain"]
        progress {
          preset = "plain"
        }
      }
    }
  }

  # {"step": 10, "loss": 0.5}
  group "jsonl" {
    task "jsonl" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "mlp", "-threads", "1", "-style", "json"]
        progress {
          preset = "jsonl"
        }
      }
    }
  }
}
