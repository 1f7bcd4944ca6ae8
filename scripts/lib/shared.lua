-- lib/shared: how many counts of a lock's field belong to callers of WithOwner.
-- A private hold may have the same id. Its release must leave these counts alone.
-- defines  shared_count(key, field): 0 if none; set_shared(key, field, n)
local function shared_count(key, field)
  return tonumber(redis.call('hget', key, field) or 0)
end

local function set_shared(key, field, n)
  if n > 0 then
    redis.call('hset', key, field, n)
    redis.call('pexpire', key, 86400000) -- longer than any lease that is renewed needs
  else
    redis.call('hdel', key, field)
  end
end
