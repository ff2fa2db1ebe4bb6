# The models that the papers trained, with their targets: FlowCon's 10 jobs in 200 s on one
# node, which took 1385 s there.
node "node" { cores = 8 }

workload "papers" {
  jobs         = 10
  median_cpu_s = 1000
  over_s       = 200
  targets      = true
  noise        = 0.003
}
