-- rwlock/read_shorten: shorten the leases of a reader, which last longer than it has promised.
-- See lock/shorten. The lock's hash then lasts as long as its longest-lived reader.
-- uses     lib/fresh, lib/shared_counts, rwlock/fit_ttl, rwlock/hold_keys, rwlock/readers
-- KEYS[1]  lock_hash
-- KEYS[2]  hold_key: of the reader's first hold, see rwlock/read_check
-- KEYS[3]  shared_counts
-- ARGV[1]  owner (text): id
-- ARGV[2]  counts (number): that belong to the holder
-- ARGV[3]  ttl_ms (ms)
-- ARGV[4]  seen_at (number): when a renewal found the longer leases, by the server's clock, ms
-- ARGV[5]  memory_key (text, optional): of the holder's acquisition with WithOwner
-- returns  number: 1 if it did, else 0
local lock_hash, shared_counts = KEYS[1], KEYS[3]
local owner, counts, ttl_ms, seen_at, memory_key = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

if memory_key and not is_only_shared_count(shared_counts, owner, memory_key) then
  return 0
end
local prefix = hold_prefix(lock_hash)
local left = reader_ttl(prefix, owner, counts)
if redis.call('hget', lock_hash, owner) ~= counts or not is_fresh(seen_at)
  or left <= tonumber(ttl_ms) then
  return 0
end
for n = 1, holds_of(counts) do
  local key = hold_key(prefix, owner, n)
  if redis.call('pttl', key) > tonumber(ttl_ms) then
    redis.call('pexpire', key, ttl_ms)
  end
end
if redis.call('hget', lock_hash, 'mode') == 'read' then -- a writer's lease stays
  fit_ttl(lock_hash, prefix, left)
end
return 1
