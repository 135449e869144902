"""datastore/kernels"""
