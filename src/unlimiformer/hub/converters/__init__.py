"""hub/converters"""
