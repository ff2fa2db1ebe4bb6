# Two training jobs share one NVIDIA card.
#
#   nomad job run jobspecs/gpu.hcl
#
# The node needs the plugin ebbtide-gpu, its preload library and NVIDIA's container toolkit
# (docs/gpu.md). The image is PyTorch's own.
#
# What to look at: the tasks see different amounts of GPU memory, and more once one of them
# has ended:
#
#   nomad alloc logs -f <allocation>
#
# "small" asks for at most 8 GiB and leaves the rest to "large". If it asked for more,
# "large" would still weigh more, by its priority. To see which task has a seat:
#
#   nomad node status -stats <node>
job "gpu" {
  type = "batch"

  group "large" {
    task "large" {
      driver = "ebbtide"

      meta {
        ebbtide_priority = "80" # 1 to 100, default 50
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
        memory = 3072 # MiB of host memory

        # While the task is parked, its GPU memory is in host memory and counts as the
        # task's. memory_max makes room for it and needs memory oversubscription in
        # Nomad's scheduler. Without it the task is not parked, and others wait.
        memory_max = 19456

        device "nvidia/share" {
          count = 1

          # The whole card, not the share.
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
        ebbtide_gpu_memory = "8192" # MiB: the most GPU memory that it wants
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
