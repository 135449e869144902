"""engines/seq2seq"""
