# Eight equal nodes, as in FlowCon's run of 60 jobs and SpeCon's of 50.
node "node" {
  count = 8
  cores = 8
}

workload "papers" {
  jobs         = 60
  median_cpu_s = 1500
  over_s       = 400
}
