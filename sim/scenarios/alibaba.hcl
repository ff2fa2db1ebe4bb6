# Thirty pods of a production cluster that share one of its nodes (-data).
node "node" { cores = 32 }

workload "alibaba" {
  jobs         = 30
  median_cpu_s = 2000
}
