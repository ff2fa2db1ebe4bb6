# The models that the papers trained, in FlowCon's setting: 10 jobs that arrive early on one
# node. 3 jobs at 0, 40 and 80 s, 5, 10 and 15 were the paper's numbers (-jobs).
node "node" { cores = 2 }

workload "papers" {
  jobs         = 10
  median_cpu_s = 250
  spread       = 0.15
  noise        = 0.003
}
