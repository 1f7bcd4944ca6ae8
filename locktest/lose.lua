-- lose: take ids out of all that is derived from a name.
-- ARGV[1]   name
-- ARGV[2..] ids
-- returns   how many were found
local ids = {}
for i = 2, #ARGV do
  ids[ARGV[i]] = true
  ids[ARGV[i] .. ':write'] = true
end
local found = 0
for _, key in ipairs(redis.call('keys', '*')) do
  local kind = redis.call('type', key).ok
  if kind == 'hash' and string.sub(key, -#ARGV[1]) == ARGV[1] then
    local hit, others = false, false
    for _, field in ipairs(redis.call('hkeys', key)) do
      if ids[field] then
        redis.call('hdel', key, field)
        found, hit = found + 1, true
      elseif field ~= 'mode' then
        others = true
      end
    end
    if hit and not others then
      redis.call('del', key)
      redis.call('publish', 'redisson_lock__channel:{' .. key .. '}', '0')
      redis.call('publish', 'redisson_rwlock:{' .. key .. '}', '0')
    end
  elseif kind == 'zset' and string.find(key, ARGV[1], 1, true) then
    -- A permit: its lease is over long since, and the next one who looks takes it back into the pool.
    for i = 2, #ARGV do
      if redis.call('zscore', key, ARGV[i]) then
        redis.call('zadd', key, 1, ARGV[i])
        found = found + 1
      end
    end
  end
end
return found
