# A client as docs/operations.md recommends it, and things that doctor ignores.
data_dir   = "/opt/nomad/data"
plugin_dir = "/opt/nomad/plugins"
bind_addr  = "0.0.0.0"

consul {
  token = "SECRET-consul"
}

vault {
  enabled = false
}

acl {
  enabled = true
}

server {
  enabled = false
}

client {
  enabled          = true
  max_kill_timeout = "5m"
  servers          = ["10.0.0.1"]

  reserved {
    cpu = 500
  }

  meta {
    rack = "r1"
  }
}

telemetry {
  publish_allocation_metrics = true
  prometheus_metrics         = true
}

plugin "raw_exec" {
  config {
    enabled = true
  }
}

plugin "ebbtide-driver" {
  config {
    engine   = "docker"
    interval = "10s"

    docker {
      endpoint = "unix:///var/run/docker.sock"

      auth {
        config = "SECRET-auth"
      }

      gc {
        image = false
      }
    }
  }
}

plugin "docker" {
  config {
    auth {
      config = "SECRET-stock"
    }

    gc {
      dangling_containers {
        enabled = false
      }
    }
  }
}
