# The shim's ACL policy for the jobs of one namespace, here "ml" (replace it, or repeat its rule for
# more). With register-job, a job can use every driver that the clients enable: a user with the
# token has the rights of the strongest one, in these namespaces only. A namespace's
# disabled_task_drivers restricts it further.
#
#   nomad acl policy apply ebbtide-shim jobspecs/acl/shim-namespace.hcl
#   nomad acl token create -name ebbtide-shim -policy ebbtide-shim
#
# Nomad's event stream requires these rights in every namespace. The rule for a namespace
# replaces this one.
namespace "*" {
  capabilities = ["list-jobs", "read-job"]
}

namespace "ml" {
  capabilities = ["list-jobs", "read-job", "plan-job", "register-job", "alloc-lifecycle", "read-fs", "tag-job-version"]
}

# leader.namespace and leader.path
namespace "default" {
  capabilities = ["list-jobs", "read-job"]

  variables {
    path "ebbtide/shim/*" {
      capabilities = ["list", "read", "write", "destroy"]
    }
  }
}

node {
  policy = "read"
}

agent {
  policy = "read"
}
