# Fifteen pods of a production cluster that share one of its nodes (-data). A pod can use
# what it asked for: mostly 4 to 12 cores.
node "node" { cores = 32 }

workload "alibaba" {
  jobs         = 15
  median_cpu_s = 3200
  spread       = 0.25
}
