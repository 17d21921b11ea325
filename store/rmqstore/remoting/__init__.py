"""The remoting protocol of RocketMQ: name servers and brokers over the network."""
