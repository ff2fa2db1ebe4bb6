# 100,000 jobs on 10,000 nodes of four sizes: how fast the simulator is.
sizes = "exact"

node "n2" {
  count = 2500
  cores = 2
}
node "n4" {
  count = 2500
  cores = 4
}
node "n8" {
  count = 2500
  cores = 8
}
node "n16" {
  count = 2500
  cores = 16
}

workload "generated" {
  jobs         = 100000
  median_cpu_s = 200
  reports      = 20
  cap_cores    = [1, 2, 4, 8]
}
