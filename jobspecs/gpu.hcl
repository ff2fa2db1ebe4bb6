# Two training jobs share one NVIDIA card.
#
#   nomad job run jobspecs/gpu.hcl
#
# The node has the plugin ebbtide-gpu, its preload library and NVIDIA's container
# toolkit (docs/gpu.md); the image is PyTorch's own, with nothing of ours in it.
#
# What to look at: the tasks are told of different amounts of memory, and of other
# ones when one of them has ended:
#
#   nomad alloc logs -f <allocation>
#
# "small" wants no more than 8 GiB, and what it leaves is for "large". If it wanted more,
# "large" would still count for more, by its priority. Nomad shows who holds what:
#
#   nomad node status -stats <node>
job "gpu" {
  type = "batch"

  group "large" {
    task "large" {
      driver = "ebbtide"

      meta {
        ebbtide_priority = "80" # 1 to 100; 50 if nothing is said
      }

      config {
        image   = "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime"
        command = "python"
        args    = ["${NOMAD_TASK_DIR}/train.py", "600"]
      }

      template {
        destination = "local/train.py"
        data        = <<-EOT
          import sys, torch

          steps = int(sys.argv[1])
          net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)).cuda()
          optimizer = torch.optim.Adam(net.parameters())
          for step in range(1, steps + 1):
              x = torch.randn(4096, 1024, device="cuda")
              loss = (net(x) - x.sin()).square().mean()
              optimizer.zero_grad()
              loss.backward()
              optimizer.step()
              free, total = torch.cuda.mem_get_info()
              print(f"step {step}/{steps} loss={loss.item():.4f} free={free >> 20} memory={total >> 20}")
        EOT
      }

      resources {
        cpu    = 500
        memory = 3072 # MiB of the host's

        # When its memory on the card makes room for another task's, it is the task's own in
        # the host: so much more, if Nomad's scheduler lets tasks have it (memory
        # oversubscription). Without, it stays on the card, and others wait.
        memory_max = 19456

        device "nvidia/share" {
          count = 1

          # The card, not the share of it.
          constraint {
            attribute = "${device.attr.memory}"
            operator  = ">="
            value     = "16 GiB"
          }
        }
      }
    }
  }

  group "small" {
    task "small" {
      driver = "ebbtide"

      meta {
        ebbtide_gpu_memory = "8192" # MiB: the most that it wants of the card's
      }

      config {
        image   = "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime"
        command = "python"
        args    = ["-c", "import time, torch\nfor _ in range(600): x = torch.randn(1 << 26, device='cuda'); print('memory=%d' % (torch.cuda.mem_get_info()[1] >> 20), flush=True); time.sleep(1)"]
      }

      resources {
        cpu        = 500
        memory     = 3072
        memory_max = 11328

        device "nvidia/share" {
          count = 1
        }
      }
    }
  }
}
