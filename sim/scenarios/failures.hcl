# Nodes fail every hour and are back after five minutes; jobs save every 50 CPU-seconds.
node "node" {
  count = 4
  cores = 4
}
workload "generated" {
  jobs         = 40
  median_cpu_s = 400
}
failures {
  every_s      = 3600
  repair_s     = 300
  checkpoint_s = 50
}
