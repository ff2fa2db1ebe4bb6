# Jobs that scale as they do: some linearly, some badly, some not beyond one core or two.
node "node" { cores = 8 }

workload "generated" {
  jobs         = 24
  median_cpu_s = 600
  spread       = 0.5
  cap_cores    = [1, 2, 8, 8, 8]
  overheads    = [0, 0.2, 0.5]
}
