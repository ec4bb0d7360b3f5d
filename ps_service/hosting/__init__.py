"""What an owner hosts: the allow-list, objects, the registry, and the copies of modules that calls run on."""
