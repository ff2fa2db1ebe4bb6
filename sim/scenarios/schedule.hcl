# FlowCon's fixed schedule: three jobs, 40 s apart, on one node.
node "node" { cores = 2 }

workload "papers" {
  jobs         = 3
  median_cpu_s = 250
  arrive_s     = [0, 40, 80]
  noise        = 0.003
}
