# SpeCon's fixed schedule: twenty equal jobs, 50 s apart, on four nodes. The paper's thresholds and
# intervals: options = { specon_alpha = 0.05, specon_interval = "20s" }, and 0.01 to 0.1, 20 to 30 s.
node "node" {
  count = 4
  cores = 8
}

workload "generated" {
  jobs         = 20
  median_cpu_s = 1500
  sigma        = 0.01
  arrive_s = [
    0, 50, 100, 150, 200, 250, 300, 350, 400, 450,
    500, 550, 600, 650, 700, 750, 800, 850, 900, 950,
  ]
}
