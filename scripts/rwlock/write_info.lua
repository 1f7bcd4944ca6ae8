-- rwlock/write_info: read who is the writer.
-- uses     lib/primary, rwlock/foreign, rwlock/readers
-- KEYS[1]  lock_hash
-- returns  holders: the writer, if there is one
local lock_hash = KEYS[1]

prefer_primary(lock_hash)
local foreign_data = no_rwlock(lock_hash)
if foreign_data then
  return foreign_data
end
local writer, pttl = writer_of(lock_hash), redis.call('pttl', lock_hash)
if not writer then
  return {pttl, {}}
end
return {pttl, {writer, tonumber(redis.call('hget', lock_hash, writer .. ':write')) or 0, pttl}}
