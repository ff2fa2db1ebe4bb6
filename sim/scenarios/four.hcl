# Four equal nodes, as in FlowCon's and SpeCon's runs of 20 and 40 jobs.
node "node" {
  count = 4
  cores = 8
}

workload "papers" {
  jobs         = 20
  median_cpu_s = 1500
  over_s       = 200
}
